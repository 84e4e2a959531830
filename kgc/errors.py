"""The one exception that means "the user can mend this"."""


class UserError(Exception):
    """A mistake of the user: what is wrong, where (file and line, or config key), and the cure.

    The entry points print it as one line, `error: …`, and exit with code 2; no traceback is shown.
    """


class Alert(Exception):
    """A finding that the user asked to be warned of; the entry points print it and exit with code 3."""
