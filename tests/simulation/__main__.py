"""`python -m tests.simulation --seed 1 --runs 10 --hours 0.5`: run seeds, print what happened.

Each seed runs in a process of its own, forked from this one: what it does follows from nothing else
than the seed and the code. A seed that fails is printed as one line that repeats it.
"""

from __future__ import annotations

import sys

from tests.simulation import mutations, seeded

if __name__ == "__main__":
    seeded.exec_with_fixed_hashes()
    seeded.install()
    if "--mutation" in sys.argv:
        mutations.plant(sys.argv[sys.argv.index("--mutation") + 1])

    from tests.simulation.command import main

    main()
