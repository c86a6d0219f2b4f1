"""Helpers without knowledge of the algorithm.

Files:     files, json_shapes, checksums, code_version
Models:    model_folder, loaded_model, precision
Machine:   machine, threads, time_limit
Texts:     text, quotes
"""
