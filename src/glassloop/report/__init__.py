"""The report of a run and the comparison of runs as HTML pages, made from run folders alone, without torch.

`page` adds a strict Content-Security-Policy: only its own style and script run, and no request leaves a page
(`connect=True` allows requests to its own server). Style attributes are therefore not possible: use classes of page.css.
HTML is written by templates, which escape every text; only the SVG of charts is written in Python. page.js needs no setup and
listens on the document, so that HTML which is replaced later works too.
"""
