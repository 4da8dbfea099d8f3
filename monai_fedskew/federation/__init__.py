"""Rounds between a server and its sites; knows no algorithm and no transport. Import from the modules."""
