"""Text in any language: folding, sentences, words, numbers, the languages we know.

Folding is for finding only: what merges passages or compares numbers goes by `composed` (NFC).
"""
