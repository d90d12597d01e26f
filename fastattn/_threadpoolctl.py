# SPDX-License-Identifier: MIT
"""The threads of this package as threadpoolctl sees them; importing it is enough."""

from threadpoolctl import LibController, register

from fastattn import _core, threads

EXTENSION = "_core."


class Controller(LibController):
    """The core, whether Python or a program in C has loaded it."""

    user_api = internal_api = "fastattn"
    filename_prefixes = (EXTENSION, "libfastattn")
    check_symbols = ("fa_max_threads",)

    def get_num_threads(self):
        """Return the threads of calls that `set_num_threads` is about.

        What it returns is set again in the end, and must not be what holds in one context only.
        """
        return threads.outside_contexts()

    def set_num_threads(self, num_threads):
        """Limit the threads of calls outside of a `num_threads` context.

        Once, not for the library that a program in C has loaded, too: its callers say how many.
        """
        if self.prefix == EXTENSION:
            threads.set_limit(num_threads)

    def get_version(self):
        """Return the version of the package."""
        return _core.VERSION


register(Controller)
