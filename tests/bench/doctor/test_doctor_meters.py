"""The doctor's word on each meter: it is read for real, and what it lacks has a remedy."""

from __future__ import annotations
