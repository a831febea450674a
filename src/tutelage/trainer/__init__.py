"""`Trainer` and its algorithms: training from Python."""

from tutelage.platforms import check_platform

check_platform()  # before what Windows lacks is imported
