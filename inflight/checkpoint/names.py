"""Names of checkpoints, for whoever offers them: nothing else is needed to know them."""

DEFAULT = "smollm2-135m-instruct"  # the course's model
