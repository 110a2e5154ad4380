"""The report of a run and the comparison of runs as HTML pages, made from run folders alone, without torch."""

# The policy of a page lets only its own style and script run. Style attributes are therefore not possible: use classes of
# page.css. page.js needs no setup and listens on the document, so that HTML which is replaced later works too.
