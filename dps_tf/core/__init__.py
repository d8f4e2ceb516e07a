"""The concepts of the measurement, pure values without TensorFlow, gin or files."""

from __future__ import annotations

from dps_tf.core.cell import (
    CELL_KEY,
    CELL_TYPES,
    DENSE,
    Cell,
    Curve,
    axis_part,
    cell_key,
    checked_name,
    is_axis,
)
from dps_tf.core.errors import (
    UserError,
    check_known,
    check_positive,
    check_type,
    check_whole,
    duration,
    is_number,
    is_whole,
    near_matches,
    on_one_line,
    own_code,
    printable,
    whole,
)
from dps_tf.core.evaluation_steps import EvaluationSchedule
from dps_tf.core.execution import (
    PLACEMENTS,
    STRATEGIES,
    Backend,
    ClusterRunner,
    Job,
    PreparedStudy,
    Runner,
    SlotLost,
    StudyTimes,
    TrialProvenance,
    TrialState,
    TurnReport,
    processors,
)
from dps_tf.core.goal import Goal, direction_of
from dps_tf.core.groups import Group, gathered, lane_of, most_groups
from dps_tf.core.nearest import Nearest, advice, nearest_of
from dps_tf.core.noisy_quadratic import NoisyQuadratic
from dps_tf.core.order import examples_at
from dps_tf.core.outcome import (
    OUTCOMES,
    Crossings,
    GoalWatch,
    Trajectory,
    crossings,
    error_cause,
    trial_outcome,
)
from dps_tf.core.purity import LIBRARIES, arguments_alone, is_own_module
from dps_tf.core.race import (
    Plan,
    RaceRule,
    StudyResult,
    TrialResult,
    plan,
    reduce_study,
    reserve,
    steps_left,
    within_lead,
)
from dps_tf.core.registry import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    REQUIRED,
    SHARE,
    Argument,
    Range,
    Reads,
    Registry,
    arguments_of,
    remembered,
    resolve,
)
from dps_tf.core.seeds import derive_seed
from dps_tf.core.space import Space, check_metaparameter, is_rate, points
from dps_tf.core.study import (
    FLOAT32,
    RESULTS_VERSION,
    TRAIN_LOSS,
    VALIDATION,
    Pruning,
    StudySpecification,
    is_further,
)
from dps_tf.core.sweep import (
    ScalingRule,
    StepsTable,
    SweepSpecification,
    WorkloadFamily,
    grid,
    repeat_study,
    repeated_seed,
)
from dps_tf.core.workload import (
    DIVISION,
    QUASI_RANDOM,
    EvaluationInterval,
    StepsInExamples,
    Workload,
    lengths_in_steps,
    with_shares,
)
