"""Imported by each Python process of a recorded router: plants what the recording is made with."""

import os

if "CRASH_IMAGES_PLANTED" in os.environ:
    from tests.crash_images.planting import plant

    plant(os.environ["CRASH_IMAGES_PLANTED"])
