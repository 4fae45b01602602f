/* Draws the charts of a report with Chart.js. The texts in the data come from files that nobody vouches for:
   they are drawn on canvases or set as text, never as HTML. */
(function () {
    "use strict";
    var data = JSON.parse(document.getElementById("charts").textContent);
    var live = document.getElementById("live");
    var printing = false;
    var drawn = [];

    function colours() {
        var style = getComputedStyle(document.documentElement);
        function get(name) { return style.getPropertyValue(name).trim(); }
        /* A printer's page is light whatever the screen is: these are the values of the print style. */
        if (printing)
            return { paper: "#ffffff", ink: "#000000", pale: "#444444", grid: "#dddddd", mark: "#a40e26",
                series: ["#0b5cad", "#b35900", "#1a7f37", "#7a3ea8"] };
        return { paper: get("--card"), ink: get("--ink"), pale: get("--pale"), grid: get("--grid"),
            mark: get("--mark"), series: [get("--s0"), get("--s1"), get("--s2"), get("--s3")] };
    }

    function brief(text, most) {
        var letters = Array.from(String(text));
        return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : String(text);
    }

    function shown(value) {
        if (typeof value !== "number")
            return String(value);
        return String(Number(value.toPrecision(6)));
    }

    /* Straight lines across the axis of values, each with its name. */
    function marks(spec, c, upright) {
        return {
            id: "marks",
            afterDatasetsDraw: function (chart) {
                var g = chart.ctx, area = chart.chartArea, scale = chart.scales[upright ? "x" : "y"];
                g.save();
                g.font = "11px system-ui, sans-serif";
                spec.marks.forEach(function (mark, i) {
                    var at = scale.getPixelForValue(mark.at);
                    if (upright ? at < area.left - 1 || at > area.right + 1 : at < area.top - 1 || at > area.bottom + 1)
                        return;
                    g.strokeStyle = c.mark;
                    g.lineWidth = 1.5;
                    g.setLineDash(i % 2 ? [2, 3] : [7, 4]);
                    g.beginPath();
                    g.moveTo(upright ? at : area.left, upright ? area.top : at);
                    g.lineTo(upright ? at : area.right, upright ? area.bottom : at);
                    g.stroke();
                    var name = brief(mark.name, 28), width = g.measureText(name).width;
                    var x = upright ? Math.min(Math.max(at + 4, area.left), area.right - width - 2) : area.right - width - 4;
                    var y = upright ? area.top + 10 + 13 * i : Math.max(at - 5, area.top + 10);
                    g.fillStyle = c.paper;
                    g.globalAlpha = 0.8;
                    g.fillRect(x - 2, y - 10, width + 4, 13);
                    g.globalAlpha = 1;
                    g.fillStyle = c.mark;
                    g.fillText(name, x, y);
                });
                g.restore();
            }
        };
    }

    /* The estimate inside each interval. */
    function estimates(spec, c) {
        return {
            id: "estimates",
            afterDatasetsDraw: function (chart) {
                var g = chart.ctx;
                spec.series.forEach(function (series, s) {
                    chart.getDatasetMeta(s).data.forEach(function (bar, i) {
                        if (typeof series.at[i] !== "number")
                            return;
                        g.save();
                        g.fillStyle = c.ink;
                        g.strokeStyle = c.paper;
                        g.lineWidth = 1.5;
                        g.beginPath();
                        g.arc(chart.scales.x.getPixelForValue(series.at[i]), bar.y, 4, 0, 2 * Math.PI);
                        g.fill();
                        g.stroke();
                        g.restore();
                    });
                });
            }
        };
    }

    var forms = ["circle", "rectRot", "triangle", "rect"];
    var dashes = [[], [7, 3], [2, 3], [9, 3, 2, 3]];

    function datasets(spec, c) {
        return spec.series.map(function (series, i) {
            var colour = c.series[i % 4];
            var set = { label: brief(series.name, 40), borderColor: colour, backgroundColor: colour };
            if (spec.kind === "lines") {
                set.data = series.x.map(function (x, k) { return { x: x, y: series.y[k] }; });
                set.showLine = true;
                set.spanGaps = false;
                set.pointStyle = forms[i % 4];
                set.pointRadius = spec.dense ? 0 : 5;
                set.pointHitRadius = 6;
                set.borderWidth = spec.dense ? 1.3 : 1.5;
                set.borderDash = spec.dense ? [] : dashes[i % 4];
            } else if (spec.kind === "intervals") {
                set.data = series.low.map(function (low, k) { return [low, series.high[k]]; });
                set.minBarLength = 3;
                set.maxBarThickness = 14;
            } else {
                set.data = series.values;
                set.maxBarThickness = spec.joined ? 400 : 48;
                set.barPercentage = spec.joined ? 0.98 : 0.8;
                set.categoryPercentage = spec.joined ? 1 : 0.8;
            }
            return set;
        });
    }

    function range(spec) {
        var values = [];
        spec.series.forEach(function (series) {
            [series.y, series.values, series.low, series.high].forEach(function (list) {
                (list || []).forEach(function (v) { if (typeof v === "number") values.push(v); });
            });
        });
        spec.marks.forEach(function (mark) { values.push(mark.at); });
        if (!values.length)
            return null;
        var low = values.reduce(function (a, b) { return Math.min(a, b); });
        var high = values.reduce(function (a, b) { return Math.max(a, b); });
        var room = (high - low) * 0.06 || Math.abs(high) * 0.02 || 1;
        return { low: low - room, high: high + room };
    }

    function configuration(spec, c) {
        var lying = spec.kind === "intervals" || spec.across === true;
        var values = lying ? "x" : "y", other = lying ? "y" : "x", limits = range(spec);
        var scales = { x: {}, y: {} };
        ["x", "y"].forEach(function (axis) {
            scales[axis] = {
                title: { display: spec[axis] !== "", text: brief(spec[axis], 80), color: c.pale },
                ticks: { color: c.pale, maxRotation: 50 },
                grid: { color: c.grid, borderColor: c.pale }
            };
        });
        scales[values].type = "linear";
        if (spec.kind === "bars") {
            scales[values].beginAtZero = true;
            if (limits)
                scales[values].suggestedMax = limits.high;
        } else {
            scales[values].beginAtZero = false;
            if (limits) {
                scales[values].suggestedMin = limits.low;
                scales[values].suggestedMax = limits.high;
            }
        }
        if (spec.kind === "lines") {
            scales.x.type = "linear";
            var first = Infinity, last = -Infinity;
            spec.series.forEach(function (series) {
                series.x.forEach(function (x) { first = Math.min(first, x); last = Math.max(last, x); });
            });
            if (first < last) { /* no tick of its own for an end that is no round number */
                scales.x.min = first;
                scales.x.max = last;
                scales.x.ticks.includeBounds = false;
            }
            if (spec.whole)
                scales.x.ticks.precision = 0;
        } else {
            scales[other].type = "category";
            scales[other].labels = spec.labels.map(function (label) { return brief(label, 26); });
            scales[other].grid.display = false;
            if (lying)
                scales[other].ticks.autoSkip = false;
        }
        return {
            type: spec.kind === "lines" ? "scatter" : "bar",
            data: { labels: scales[other].labels, datasets: datasets(spec, c) },
            options: {
                indexAxis: lying ? "y" : "x",
                animation: false,
                responsive: true,
                maintainAspectRatio: false,
                scales: scales,
                interaction: { mode: "nearest", intersect: false, axis: spec.kind === "lines" ? "xy" : other },
                plugins: {
                    legend: { display: spec.series.length > 1, labels: { color: c.ink, usePointStyle: !spec.dense, boxWidth: spec.dense ? 24 : 9, boxHeight: spec.dense ? 3 : 9 } },
                    tooltip: { callbacks: { label: function (item) { return words(spec, item.datasetIndex, item.dataIndex); },
                        title: function () { return ""; } } }
                }
            },
            plugins: [marks(spec, c, lying)].concat(spec.kind === "intervals" ? [estimates(spec, c)] : [])
        };
    }

    /* A point in words, for the tooltip and for who hears the page. */
    function words(spec, set, index) {
        var series = spec.series[set];
        if (spec.kind === "lines")
            return brief(series.name, 40) + ": " + shown(series.y[index]) + " at " + shown(series.x[index]) + " (" + spec.x + ")";
        if (spec.kind === "intervals")
            return brief(spec.labels[index], 60) + ": " + shown(series.at[index]) + " (" + shown(series.low[index]) + " to " +
                shown(series.high[index]) + ")";
        return brief(spec.labels[index], 60) + ": " + shown(series.values[index]);
    }

    /* Left and right walk along a series, up and down change it, Escape leaves. */
    function walk(spec, canvas) {
        var set = 0, index = -1;
        canvas.addEventListener("keydown", function (event) {
            var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key] || 0, jump = { ArrowDown: 1, ArrowUp: -1 }[event.key] || 0;
            var current = drawn[canvas.dataset.index];
            if (event.key === "Escape") {
                current.setActiveElements([]);
                current.tooltip.setActiveElements([], { x: 0, y: 0 });
                current.update();
                live.textContent = "";
                return;
            }
            if (!step && !jump)
                return;
            event.preventDefault();
            set = (set + jump + spec.series.length) % spec.series.length;
            var count = current.data.datasets[set].data.length;
            if (!count)
                return;
            index = Math.min(Math.max(index + step, 0), count - 1);
            var element = current.getDatasetMeta(set).data[index];
            var active = [{ datasetIndex: set, index: index }];
            current.setActiveElements(active);
            current.tooltip.setActiveElements(active, { x: element.x, y: element.y });
            current.update();
            live.textContent = words(spec, set, index);
        });
    }

    function draw() {
        var c = colours();
        data.forEach(function (spec, i) {
            var canvas = document.getElementById("chart-" + i);
            if (drawn[i])
                drawn[i].destroy();
            drawn[i] = new Chart(canvas, configuration(spec, c));
        });
    }

    draw();
    data.forEach(function (spec, i) {
        var canvas = document.getElementById("chart-" + i);
        canvas.dataset.index = i;
        walk(spec, canvas);
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    var opened = [];
    window.addEventListener("beforeprint", function () {
        printing = true;
        opened = Array.from(document.querySelectorAll("details.folded:not([open])"));
        opened.forEach(function (d) { d.open = true; });
        draw();
    });
    window.addEventListener("afterprint", function () {
        printing = false;
        opened.forEach(function (d) { d.open = false; });
        draw();
    });
    document.documentElement.dataset.drawn = "yes";
})();
