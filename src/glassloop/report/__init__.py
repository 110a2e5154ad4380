"""The report of a run as one HTML file, made from the run folder alone, without torch.

from glassloop.report.build import report_of

report = report_of(Path("runs/mrpc"))   # a run, several seeds, or the output folder of a Trainer
report.html                             # the page
report.charts                           # its charts by name, for files
report.results                          # the table of results: see `report.results`
"""
