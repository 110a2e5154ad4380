"""Charts as values: each one is a dataclass that becomes SVG in a page, a standalone SVG file, and a data table.

    from glassloop.report.charts.figure import Axis, csv_of, figure, standalone
    from glassloop.report.charts.line import LineChart, Series

    chart = LineChart("Training loss", "Loss by step.", Axis("step"), Axis("loss"), [Series("loss", [(1, 0.7), (2, 0.5)])])
    figure(chart)      # <figure> for a page: SVG, a legend whose buttons hide series, the data table in <details>
    standalone(chart)  # the text of an .svg file with its styles
    csv_of(chart)      # the data

Colors are CSS variables, so that charts follow the light or dark style of the page. Marks are named by a <title> child, which
the script shows at once and browsers without script after a moment. All texts are escaped.
"""
