"""Show a run: tables, figures, the answer, and the report.

A view is a frame and a figure; terminal, JSON, pictures and page are made from it alone.
"""
