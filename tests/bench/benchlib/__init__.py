# SPDX-License-Identifier: BSD-3-Clause
"""Parts of the benchmark; `bench' beside this directory is the program."""
