"""Federated learning under feature skew for MONAI bundles."""
