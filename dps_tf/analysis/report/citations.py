"""Whom to cite."""

from __future__ import annotations

from dataclasses import dataclass

import dps_tf


@dataclass(frozen=True)
class Citation:
    """A work to cite: its text, and where to read it."""

    text: str
    address: str = ""


CITATIONS = (
    Citation(
        "C. J. Shallue, J. Lee, J. Antognini, J. Sohl-Dickstein, R. Frostig and "
        "G. E. Dahl. Measuring the Effects of Data Parallelism on Neural Network "
        "Training. Journal of Machine Learning Research 20(112):1-49, 2019.",
        "https://arxiv.org/abs/1811.03600",
    ),
    Citation(
        "N. Lee, T. Ajanthan, P. H. S. Torr and M. Jaggi. Understanding the Effects of "
        "Data Parallelism and Sparsity on Neural Network Training. International "
        "Conference on Learning Representations (ICLR), 2021.",
        "https://arxiv.org/abs/2003.11316",
    ),
    Citation(
        f"dps_tf, version {dps_tf.__version__}: steps-to-result of neural-network "
        "training against batch size and sparsity. Software, Apache License 2.0."
    ),
)

BIBTEX = f"""\
@article{{shallue2019measuring,
  author  = {{Shallue, Christopher J. and Lee, Jaehoon and Antognini, Joseph and
             Sohl-Dickstein, Jascha and Frostig, Roy and Dahl, George E.}},
  title   = {{Measuring the Effects of Data Parallelism on Neural Network Training}},
  journal = {{Journal of Machine Learning Research}},
  volume  = {{20}},
  number  = {{112}},
  pages   = {{1--49}},
  year    = {{2019}}
}}

@inproceedings{{lee2021understanding,
  author    = {{Lee, Namhoon and Ajanthan, Thalaiyasingam and Torr, Philip H. S. and
               Jaggi, Martin}},
  title     = {{Understanding the Effects of Data Parallelism and Sparsity on Neural
               Network Training}},
  booktitle = {{International Conference on Learning Representations}},
  year      = {{2021}}
}}

@software{{dps_tf,
  title   = {{dps_tf: steps-to-result of neural-network training against batch size
             and sparsity}},
  version = {{{dps_tf.__version__}}}
}}
"""
