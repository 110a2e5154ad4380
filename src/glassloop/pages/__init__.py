"""Self-contained HTML pages: one file with its style and script, which loads nothing and works offline.

    from glassloop.pages.page import Section, page
    from glassloop.pages.parts import fact_list, paragraph, table

    html = page("My run", [Section("curves", "Learning curves", figure(chart))], subtitle="finished")

`page.page` adds a strict Content-Security-Policy: only its own style and script run, and no request leaves the page
(`connect=True` allows requests to its own server). Style attributes are therefore not possible: use classes of page.css.
`parts` returns pieces of HTML; every text is escaped there, through `glassloop.markup.escaped`. page.js needs no setup:
- hover, touch and arrow keys show the <title> of chart marks; buttons of a legend hide series
- a <table class="sortable"> sorts by its header buttons (`parts.table(..., sortable=True)`)
- a <form class="filter" data-for="ID"> filters the children of #ID by text and by their data attributes (`parts.filters`)
It listens on the document, so that HTML which is replaced later works too.
"""
