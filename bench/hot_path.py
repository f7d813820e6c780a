"""What a message costs the hot path in instructions, compared with the figures that are kept.

    python -m bench.hot_path [--renew]

The loads go through a real gateway, commit loop and machine, without sockets, threads and disk (harness/hot_path.py).
Costs are in units of plain Python work. `make test` checks them. A change that makes a message cheaper, or dearer for a
reason, renews the figures with --renew. They are part of the change, and are reviewed with it.
"""

from __future__ import annotations

import argparse
import sys

from harness.hot_path_cost import CannotCount, environment, keep, kept_figures, measure, too_dear


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--renew", action="store_true", help="keep the figures of this run")
    given = arguments.parse_args()
    here = environment()
    try:
        found = measure()
    except CannotCount as reason:
        print(f"not measured: {reason}")
        return 0
    figures = kept_figures(here)
    print(here)
    for load, ratio in found.items():
        kept = figures.get(load) if figures else None
        compared = "" if kept is None else f"{ratio / kept - 1:>+8.1%} of the figure {kept:.3f}"
        print(f"  {load:<26}{ratio:>8.3f}{compared}")
    if given.renew:
        keep(here, found)
        return 0
    if figures is None:
        print("no figure is kept for this environment: --renew keeps this one")
        return 0
    return 1 if too_dear(found, figures) else 0


if __name__ == "__main__":
    sys.exit(main())
