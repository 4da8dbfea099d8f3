"""One file, one engine: what carries messages between a server and its sites. The simulator is the embedded default."""
