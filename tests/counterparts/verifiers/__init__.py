"""A counterpart of verifiers, for tests where it is not installed: not verifiers, but names that are used.

`scripts/test_extras.sh` runs the same tests with the real package.
"""

import importlib


def load_environment(env_id, **arguments):
    """Load an environment by its id."""
    return importlib.import_module(env_id.replace("-", "_")).load_environment(**arguments)
