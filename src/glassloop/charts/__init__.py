"""Charts as values: each one is a dataclass that becomes SVG in a page, a standalone SVG file, and a data table.

    from glassloop.charts.figure import csv_of, figure, standalone
    from glassloop.charts.line import LineChart, Series
    from glassloop.charts.scales import Axis

    chart = LineChart("Training loss", "Loss by step.", Axis("step"), Axis("loss"), [Series("loss", [(1, 0.7), (2, 0.5)])])
    figure(chart)      # <figure> for a page: SVG, a legend whose buttons hide series, the data table in <details>
    standalone(chart)  # the text of an .svg file with its styles
    csv_of(chart)      # the data

The charts: `line.LineChart` (raw and smoothed lines, shaded intervals, events, reference lines), `bars.BarChart`,
`histogram.Histogram`, `scatter.ScatterChart`, `dots.DotChart` (values with intervals, all seeds as points),
`heat_map.HeatMap`. A page needs `CHART_CSS` of `figure`; `glassloop.pages.page` includes it, and the script for hover
values. Colors are CSS variables, so that charts follow the light or dark style of the page. Marks are named by a <title>
child, which the script shows at once and browsers without script after a moment. All texts are escaped.
"""
