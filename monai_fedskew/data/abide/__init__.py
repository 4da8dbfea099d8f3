"""data/abide"""
