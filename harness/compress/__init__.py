"""The surgical compressor: Markdown sections, shortening by leaving out, putting sections back.

Deterministic and pure: no model, no file, no clock. Nothing here paraphrases; what is kept is kept
character for character.
"""

from harness.compress.condense import Condensed, condense
from harness.compress.passages import Excerpt, passages_of
from harness.compress.sections import Section, sections_of
from harness.compress.sentences import sentences_of
from harness.compress.splice import splice

__all__ = [
    "Condensed",
    "Excerpt",
    "Section",
    "condense",
    "passages_of",
    "sections_of",
    "sentences_of",
    "splice",
]
