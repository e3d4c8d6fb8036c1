"""Text in any language: folding, sentences, words, numbers, front matter, the languages we know.

Folding is for finding only. What merges passages or compares numbers goes by `composed` (NFC).
Where a script does not say what is asked of it, as Thai does not say where words end, the
functions of `languages` tell.
"""
