"""The one exception that means "the user can mend this"."""


class UserError(Exception):
    """A mistake of the user: what is wrong, where (file and line, or config key), and the cure.

    The entry points print it as one line, `error: …`, and exit with code 2; no traceback is shown.
    """


class Alert(Exception):
    """A finding that the user asked to be warned of; the entry points print it and exit with code 3."""


class Pruned(Exception):
    """A trial of a sweep ended because it was hopeless; the message says against what.

    Args:
        message: the reason.
        metrics: what it had reached, under the names of `metrics.json`.
    """

    def __init__(self, message: str, metrics: dict[str, float]):
        super().__init__(message, metrics)  # both, so that it can be sent from process to process
        self.metrics = metrics

    def __str__(self) -> str:
        return str(self.args[0])
