"""shardwire in the places that other packages keep for a transport of weights: one module a package, named as it. See docs/adapters.md.

Each imports its package, so each is imported by name: ``import shardwire.adapters.verl`` registers shardwire there.
"""
