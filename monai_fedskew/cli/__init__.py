"""The command line: one file, one command; heavy imports happen inside the commands."""
