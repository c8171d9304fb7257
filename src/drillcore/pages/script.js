"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const by = (id) => document.getElementById(id);
  const shown = new Map(); // element → figure, in the light colours
  const config = { responsive: true, displaylogo: false, displayModeBar: true, modeBarButtons: [["toImage"]] };
  let turns = 0; // a later round of drawing ends an earlier one
  root.dataset.failed = "0";

  /* Theme: figures are written in light colours and swapped, string by string. */
  function swapped(value, colours) {
    if (typeof value === "string") return colours[value] ?? value;
    if (Array.isArray(value)) return value.map((v) => swapped(v, colours));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, swapped(v, colours)]));
    }
    return value;
  }
  const isDark = () => root.dataset.theme === "dark";

  function setTheme(theme, redraw) {
    root.dataset.theme = theme;
    by("theme").textContent = theme === "dark" ? "Light" : "Dark";
    for (const swatch of document.querySelectorAll(".swatch")) {
      const light = swatch.dataset.colour;
      swatch.style.color = isDark() ? data.dark[light] ?? light : light;
    }
    if (redraw) oneByOne([...shown.keys()].sort((a, b) => fromView(a) - fromView(b)), (node) => draw(node, shown.get(node)));
  }

  /* Figures one after the other, so that the page answers meanwhile; those in view come first. */
  const fromView = (node) => Math.abs(node.getBoundingClientRect().top - innerHeight / 2);
  async function oneByOne(nodes, make) {
    const turn = ++turns;
    delete root.dataset.drawn;
    for (const node of nodes) {
      if (turn !== turns) return;
      await make(node);
      await new Promise((resume) => setTimeout(resume));
    }
    root.dataset.drawn = String(shown.size);
  }

  /* Figures. One that fails says so on the page and on the console. */
  function failed(node, error) {
    console.error(`drillcore: figure ${node.dataset.figure || node.id} failed`, error);
    root.dataset.failed = String(Number(root.dataset.failed) + 1);
    message(node, "failed", `This figure could not be drawn: ${error.message}`);
  }

  function message(node, kind, words) {
    if (node.classList.contains("js-plotly-plot")) Plotly.purge(node);
    const line = document.createElement("p");
    line.className = kind;
    line.textContent = words;
    node.replaceChildren(line);
  }

  function draw(node, figure) {
    shown.set(node, figure);
    try {
      const { data: traces, layout } = swapped(figure, isDark() ? data.dark : {});
      const { color } = layout.font;
      layout.font.family = getComputedStyle(document.body).fontFamily;
      layout.hoverlabel = { bgcolor: isDark() ? "#2b3138" : "#ffffff", bordercolor: color, align: "left",
        font: { color, family: layout.font.family } };
      layout.modebar = { bgcolor: "rgba(0,0,0,0)", color, activecolor: color };
      if (!node.classList.contains("js-plotly-plot")) node.replaceChildren();
      return Plotly.react(node, traces, layout, config).catch((error) => failed(node, error));
    } catch (error) {
      failed(node, error);
      return Promise.resolve();
    }
  }

  function drawNamed(node) {
    const figure = data.figures[node.dataset.figure];
    if (figure) return draw(node, figure);
    shown.delete(node);
    message(node, "none", "Not measured for this kind; see the statuses.");
    return Promise.resolve();
  }

  function views() {
    by("view")?.addEventListener("change", (event) => {
      for (const node of document.querySelectorAll("[data-figure^='continuity/']")) {
        node.dataset.figure = node.dataset.figure.replace(/^continuity\/[^/]+/, `continuity/${event.target.value}`);
        const caption = node.parentElement.querySelector("figcaption span");
        if (caption) caption.textContent = data.captions[node.dataset.figure] ?? "";
        drawNamed(node);
      }
    });
  }

  /* Layer × layer: unpack the chosen triangle into a symmetric matrix. */
  const at = (list, i) => (Array.isArray(list) ? list[i] : list);
  const real = (whole) => (whole === null || whole === undefined ? null : whole / data.heat.unit);
  const four = (x) => (x === null ? "–" : x.toFixed(4));
  const short = (x) => (x === null || x === undefined ? "–" : String(Number(x.toPrecision(3))));

  function hover(map, place, a, b) {
    const lines = [`layers ${a} and ${b}: ${four(real(map.value[place]))}`];
    if (map.why[place]) lines.push(map.why[place].replaceAll("&", "&amp;").replaceAll("<", "&lt;"));
    const doubt = real(at(map.doubt, place));
    if (doubt !== null) lines.push(`${map.estimated ? "standard error" : "error at most"} ${four(doubt)}`);
    const chance = at(map.null, place);
    if (chance !== null) lines.push(`by chance ${short(chance)} ± ${short(at(map.sd, place))} (1 sd)`);
    return lines.join("<br>");
  }

  function pairs(map) {
    const found = [];
    const count = map.layers.length;
    for (let i = 0, place = 0; i < count; i++) for (let j = i + 1; j < count; j++, place++) found.push([i, j, place]);
    return found;
  }

  function heatFigure(map) {
    const count = map.layers.length;
    const grid = (fill) => Array.from({ length: count }, () => Array(count).fill(fill));
    const z = grid(null);
    const words = grid("a layer with itself");
    for (const [i, j, place] of pairs(map)) {
      z[i][j] = z[j][i] = real(map.value[place]);
      words[i][j] = words[j][i] = hover(map, place, map.layers[i], map.layers[j]);
    }
    const names = map.layers.map(String);
    const figure = structuredClone(data.heat.heat);
    const numbers = map.value.filter((v) => v !== null).map(real);
    const low = Math.min(0, ...numbers);
    const top = by("heat-stretch").checked ? Math.max(1e-3, ...numbers) : 1;
    const signed = low < -0.02;
    const few = count <= 12;
    Object.assign(figure.data[0], { z, x: names, y: names, customdata: words, zmin: signed ? -top : 0, zmax: top,
      colorscale: data.heat.scales[signed ? "diverging" : "sequential"], xgap: few ? 2 : 0.5, ygap: few ? 2 : 0.5,
      texttemplate: few ? "%{z:.2f}" : "" });
    for (const axis of [figure.layout.xaxis, figure.layout.yaxis]) {
      Object.assign(axis, { type: "category", nticks: few ? count : 17 });
    }
    return figure;
  }

  function decayFigure(map) {
    const groups = new Map();
    for (const [i, j, place] of pairs(map)) {
      const value = real(map.value[place]);
      const away = map.layers[j] - map.layers[i];
      if (value === null) continue;
      if (!groups.has(away)) groups.set(away, []);
      groups.get(away).push([value, at(map.null, place)]);
    }
    const x = [...groups.keys()].sort((a, b) => a - b);
    const values = x.map((k) => groups.get(k).map(([value]) => value));
    const mean = (list) => list.reduce((sum, v) => sum + v, 0) / list.length;
    const chance = x.map((k) => mean(groups.get(k).map(([, none]) => none ?? NaN)));
    const colour = map.measure.match(/[._]u|u1/) ? "#b84a00" : "#0b62a8";
    const figure = structuredClone(data.heat.decay);
    const edge = { type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
    figure.data = [
      { ...edge, x, y: values.map((v) => Math.min(...v)) },
      { ...edge, x, y: values.map((v) => Math.max(...v)), fill: "tonexty", fillcolor: "rgba(93,102,112,0.10)" },
      { ...edge, x, y: chance, line: { width: 1, dash: "dot", color: "#5d6670" } },
      { type: "scatter", mode: "lines+markers", x, y: values.map(mean), line: { color: colour, width: 2.5 },
        marker: { color: colour, size: 6 }, customdata: values.map((v) => v.length),
        hovertemplate: "%{x} apart: %{y:.4f}, mean of %{customdata} pairs<extra></extra>" },
    ];
    return figure;
  }

  function showMap() {
    const name = `${by("heat-measure").value}/${by("heat-kind").value}`;
    const map = data.heat.maps[name];
    const note = by("heat-note");
    by("heat").dataset.figure = `heat/${name}`;
    by("decay").dataset.figure = `decay/${name}`;
    if (!map) {
      note.textContent = "No pair of this kind was measured this way.";
      for (const id of ["heat", "decay"]) {
        shown.delete(by(id));
        message(by(id), "none", note.textContent);
      }
      return Promise.resolve();
    }
    const absent = Object.keys(map.why).length;
    const chance = Array.isArray(map.null) ? "" : ` Chance: ${short(map.null)}.`;
    note.textContent = `${map.layers.length} layers, ${map.value.length} pairs` +
      (absent ? `, ${absent} of them without a number (blank; point at one for the reason).` : ".") + chance;
    return Promise.all([draw(by("heat"), heatFigure(map)), draw(by("decay"), decayFigure(map))]);
  }

  function heatMaps() {
    if (!by("heat")) return Promise.resolve();
    const [measure, ...kind] = by("heat-note").dataset.first.split("/");
    by("heat-measure").value = measure;
    by("heat-kind").value = kind.join("/");
    for (const id of ["heat-measure", "heat-kind", "heat-stretch"]) by(id).addEventListener("change", showMap);
    return showMap();
  }

  /* Census: only one page of rows is ever in the document. */
  function census() {
    if (!data.census) return;
    const size = 50;
    const { entries, left_out: leftOut } = data.census;
    const folded = entries.map((e) => e.join("\n").toLowerCase());
    const body = by("census-table").tBodies[0];
    let page = 0;

    function row(entry) {
      const line = document.createElement("tr");
      if (leftOut.includes(entry[1])) line.className = "left-out";
      entry.forEach((value, column) => {
        const cell = document.createElement("td");
        if (column === 4 || column === 6) cell.className = "n";
        cell.textContent = column === 6 ? value.toLocaleString("en") : value;
        line.append(cell);
      });
      return line;
    }

    function show() {
      const wanted = by("census-search").value.trim().toLowerCase().split(/\s+/);
      const states = new Set([...by("census-states").querySelectorAll(":checked")].map((box) => box.value));
      const found = entries.filter((e, i) => states.has(e[1]) && wanted.every((word) => folded[i].includes(word)));
      const pages = Math.max(1, Math.ceil(found.length / size));
      page = Math.min(Math.max(page, 0), pages - 1);
      body.replaceChildren(...found.slice(page * size, (page + 1) * size).map(row));
      by("census-count").textContent = `${found.length.toLocaleString("en")} of ${entries.length.toLocaleString("en")} lines` +
        (pages > 1 ? `, page ${page + 1} of ${pages}` : "");
      by("census-back").disabled = page === 0;
      by("census-next").disabled = page === pages - 1;
    }

    const turn = (by_) => () => { page += by_; show(); };
    by("census-back").addEventListener("click", turn(-1));
    by("census-next").addEventListener("click", turn(1));
    const again = () => { page = 0; show(); };
    by("census-search").addEventListener("input", again);
    by("census-states").addEventListener("change", again);
    show();
  }

  /* Start: tables first, then the figures. */
  async function start() {
    const preferred = matchMedia("(prefers-color-scheme: dark)");
    setTheme(preferred.matches ? "dark" : "light", false);
    preferred.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light", true));
    by("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark", true));
    let before = null; // the browser does not wait for anything that is drawn later
    addEventListener("beforeprint", () => {
      before = root.dataset.theme;
      setTheme("light", false);
      if (before === "dark") for (const [node, figure] of shown) draw(node, figure);
    });
    addEventListener("afterprint", () => setTheme(before, before === "dark"));
    census();
    views();
    await heatMaps();
    await oneByOne(document.querySelectorAll(".plot[data-figure]:not(#heat):not(#decay)"), drawNamed);
  }
  start().catch((error) => console.error("drillcore: the page failed", error));
})();
