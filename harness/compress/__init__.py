"""The surgical compressor: Markdown sections, condensing by omission, splicing sections back.

Deterministic and pure: no model, no file, no clock. Kept text stays character for character.
"""

from harness.compress.condense import condense
from harness.compress.edits import edits_in, splice
from harness.compress.evidence import condense_toward
from harness.compress.markdown import Section, matter_of, passages_of, sections_of
from harness.text.sentences import sentences_of

__all__ = [
    "Section", "condense", "condense_toward", "edits_in", "matter_of", "passages_of", "sections_of",
    "sentences_of", "splice",
]  # fmt: skip
