"""Describe: the census of a checkpoint, from its index alone. No weight is read."""

from pathlib import Path

from drillcore.weights import Assignment, assign, open_source


def describe(
    target: object, *, roles: Path | None = None, config: Path | None = None, base: str | None = None
) -> Assignment:
    """Say what each tensor of a checkpoint is: its role, or why it has none.

    Args:
        target: a file, a folder, a Hugging Face id, or a live ``torch.nn.Module``.
        roles: a TOML file that gives the roles of an unknown family.
        config: a config.json to use instead of the one beside the weights.
        base: the base model of a LoRA folder, where its configuration is not found beside it.

    Raises:
        InputError: the checkpoint cannot be opened; says what to do.
    """
    return assign(open_source(target, config=config), roles=roles)
