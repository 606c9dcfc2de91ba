"""`python -m tests.simulation --seed 1 --runs 10 --hours 0.5`: run seeds, print what happened.

Each seed runs in a process of its own, forked from this one: what it does follows from nothing else
than the seed and the code. A seed that fails is printed as one line that repeats it.
"""

from __future__ import annotations

from tests.simulation import seeded

if __name__ == "__main__":
    seeded.exec_with_fixed_hashes()
    seeded.install()

    from tests.simulation.command import main

    main()
