"""One file, one engine: what carries messages between a server and its sites. The simulator is the embedded default."""

__all__ = ["ENGINES"]

# engine, which is also its file: (the package it stands on, the extra of ours that installs it)
ENGINES: dict[str, tuple[str, str]] = {
    "simulator": ("", ""),
    "nvflare": ("nvflare", "nvflare"),
    "flower": ("flwr", "flower"),
    "monai_fl": ("monai.fl", ""),
}
