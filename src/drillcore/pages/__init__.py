"""Pages: a survey as one offline HTML file. Only this package draws; figures are plain Plotly dictionaries."""
