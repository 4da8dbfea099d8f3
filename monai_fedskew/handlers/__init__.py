"""Ignite handlers, of use in any MONAI trainer; import them from their own file, each brings only what it needs."""
