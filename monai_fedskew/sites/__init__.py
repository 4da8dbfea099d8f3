"""A hospital's end of a federation: bundle, data, private state. Import from the modules; most are heavy."""
