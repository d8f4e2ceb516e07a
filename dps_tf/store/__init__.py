"""The store keeps sweeps on disk, where they survive kills and damaged files."""

from __future__ import annotations

from dps_tf.store.errors import (
    DamagedError,
    LockLost,
    OtherFormatError,
    StoreError,
    explained,
    store_error,
)
from dps_tf.store.files import FileSystem, files_for
from dps_tf.store.layout import (
    CLOSING_TABLES,
    MARKER,
    CellLayout,
    SweepLayout,
    absolute,
)
from dps_tf.store.local_files import LocalFiles, is_temporary
from dps_tf.store.locks import Lock, Owner
from dps_tf.store.log import encode_event, open_log, read_log, read_logs, scan
from dps_tf.store.parquet import empty_frame, encode_table, write_table
from dps_tf.store.records import (
    FORMAT,
    canonical,
    encode_record,
    fingerprint,
    read_json,
    set_aside,
    write_json,
)
from dps_tf.store.schemas import (
    CURVES,
    MEANINGS,
    MEASUREMENTS,
    PRECISION,
    SCHEMAS,
    STUDIES,
    TRIALS,
    WORK,
    TableSchema,
)
from dps_tf.store.shortfall import shortfall
from dps_tf.store.states import State, StateStore, decode_state, encode_state
from dps_tf.store.study_history import (
    Irreproducible,
    StudyHistory,
    failure_event,
    report_event,
    session_event,
    start_event,
)
from dps_tf.store.study_reader import RecordedTrial, StudyReader
from dps_tf.store.study_record import (
    MOST_ATTEMPTS,
    NETWORK,
    StudyRecord,
    check_continues,
    environment_differences,
    open_study,
)
from dps_tf.store.study_tables import (
    best_first,
    close_study,
    goal_columns,
    reopen_study,
    study_result,
    trial_points,
)
from dps_tf.store.sweep_reader import StoredTables, SweepReader
