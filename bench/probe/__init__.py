"""Measure memory, link and GPU on their own, without a graph: named cases over one table.

``gatherbench probe`` measures them, ``--profile`` writes the model's constants, and
``gatherbench doctor`` says what this machine lacks.
"""
