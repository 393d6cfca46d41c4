"use strict";
// Draws the charts of the page from their data, sorts its tables, and follows light, dark and print.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  const css = (name) => ((probe.style.color = `var(--${name})`), getComputedStyle(probe).color);
  const SERIES = 10, DASHES = ["solid", "dashed", "dotted"];
  const PLUS = "path://M3 0h4v3h3v4h-3v3h-4v-3h-3v-4h3z";
  const DOWN = "path://M0 0h10l-5 9z", RIGHT = "path://M0 0l9 5-9 5z";
  const SYMBOLS = ["circle", "rect", "triangle", "diamond", PLUS, DOWN, RIGHT];
  let ink, soft, line, card, low, high, colours;
  const paint = () => {
    [ink, soft, line, card, low, high] = ["ink", "soft", "line", "card", "low", "high"].map(css);
    colours = Array.from({ length: SERIES }, (_, i) => css(`s${i}`));
  };
  const colour = (i) => colours[i % SERIES], symbol = (i) => SYMBOLS[i % SYMBOLS.length];
  const escape = (value) => echarts.format.encodeHTML(String(value));

  // --- figures as people read them ---
  const digits = (v) => (Math.abs(v) >= 100 || Number.isInteger(v) ? v.toFixed(0) : v.toFixed(1));
  const scaled = (v, units, step) => {
    let power = 0;
    while (Math.abs(v) >= step && power < units.length - 1) (v /= step), power++;
    return `${digits(v)} ${units[power]}`;
  };
  const UNITS = {
    share: (v) => `${(100 * v).toFixed(1)} %`,
    points: (v) => `${v > 0 ? "+" : ""}${(100 * v).toFixed(1)}`.replace("-", "−"),
    bytes: (v) => scaled(v, ["B", "kB", "MB", "GB", "TB"], 1000),
    seconds: (v) => (v === 0 ? "0" : v < 1 ? `${(1000 * v).toFixed(0)} ms` : v < 120 ? `${digits(v)} s` : v < 7200 ? `${digits(v / 60)} min` : `${digits(v / 3600)} h`),
    count: (v) => v.toLocaleString("en").replaceAll(",", "\u202f"),
    plain: (v) => String(Number(v.toPrecision(3))).replace("-", "−"),
  };
  const say = (unit, v) => (v === null || v === undefined || Number.isNaN(v) ? "–" : (UNITS[unit] || UNITS.plain)(v));

  // Ticks are round numbers, so that all their digits are few, and neighbours differ.
  const TICKS = { share: (v) => `${+(100 * v).toFixed(6)} %`, points: (v) => `${v > 0 ? "+" : ""}${+(100 * v).toFixed(6)}`.replace("-", "−"), plain: (v) => String(+v.toPrecision(9)).replace("-", "−") };
  const tick = (about, v) => (about.labels ? String(about.labels[v] ?? "") : TICKS[about.unit] ? TICKS[about.unit](v) : say(about.unit, v));

  // --- what charts have in common ---
  const axis = (about, more = {}) => ({
    name: about.name, nameLocation: "middle", nameTextStyle: { color: soft, fontSize: 12 }, type: about.log ? "log" : "value", scale: true,
    min: about.min ?? (about.unit === "share" ? 0 : undefined), max: about.max ?? (about.unit === "share" ? 1 : undefined), minInterval: { count: 1 }[about.unit], interval: about.labels ? 1 : about.unit === "share" && (about.min ?? 0) === 0 && (about.max ?? 1) === 1 ? 0.25 : undefined, axisLine: { onZero: false, lineStyle: { color: line } }, splitLine: { show: !about.labels, lineStyle: { color: line } }, minorTick: { show: false },
    axisLabel: { color: soft, fontSize: 11, hideOverlap: true, formatter: (v) => tick(about, v) }, splitNumber: 4, ...more,
  });
  const names = (list, more = {}) => ({
    type: "category", data: list, axisLine: { lineStyle: { color: line } }, axisTick: { show: false },
    axisLabel: { color: soft, fontSize: 11, hideOverlap: true, width: 120, overflow: "truncate" }, ...more,
  });
  const below = (about) => ({ nameGap: 30, ...about });
  const base = () => ({
    animation: false, textStyle: { fontFamily: getComputedStyle(document.body).fontFamily.replaceAll('"', "'"), color: ink }, legend: { show: false },
    tooltip: { confine: true, backgroundColor: card, borderColor: line, textStyle: { color: ink, fontSize: 12 }, extraCssText: "max-width:min(320px,80vw);white-space:normal" },
    grid: { left: 8, right: 16, top: 14, bottom: 8, outerBoundsMode: "same", outerBoundsContain: "all" },
  });
  const lines = (head, rows) => [`<b>${escape(head)}</b>`, ...rows.map(([name, said]) => `${escape(name)}: <b>${escape(said)}</b>`)].join("<br>");

  const KINDS = {
    // Curves over x; a series may have a band and a marked x.
    lines(d) {
      const series = [];
      for (const s of d.series) {
        const at = (values) => s.x.map((x, i) => [x, values[i]]);
        const style = { color: colour(s.colour), type: DASHES[s.dash || 0], width: s.dash ? 1.4 : 2.2 };
        if (s.lo) {
          const quiet = { type: "line", name: s.name, stack: `${s.name}-band`, symbol: "none", silent: true, lineStyle: { opacity: 0 }, tooltip: { show: false }, z: 1, stackStrategy: "all" };
          series.push({ ...quiet, data: at(s.lo) }, { ...quiet, data: at(s.hi.map((v, i) => v - s.lo[i])), areaStyle: { color: colour(s.colour), opacity: 0.14 } });
        }
        series.push({
          type: "line", name: s.name, data: at(s.y), symbol: symbol(s.colour), symbolSize: 6, showSymbol: s.x.length < 3, lineStyle: style, itemStyle: { color: style.color }, z: 3,
          markLine: s.mark ? { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: style.color, type: "dotted" }, data: [{ xAxis: s.mark }] } : undefined,
        });
      }
      const tip = (items) => {
        const real = items.filter((item) => series[item.seriesIndex].z === 3);
        return real.length ? lines(`${d.x.name} ${real[0].value[0]}`, real.map((item) => [item.seriesName, say(d.y.unit, item.value[1])])) : "";
      };
      const option = base();
      Object.assign(option.tooltip, { trigger: "axis", formatter: tip, axisPointer: { lineStyle: { color: soft } } });
      return { ...option, xAxis: below(axis(d.x, { splitLine: { show: false }, min: "dataMin", max: "dataMax" })), yAxis: axis(d.y), series };
    },
    // Points or steps in a plane: [x, y, what it is, size].
    plane(d, width) {
      const series = d.series.map((s, i) => ({
        type: s.line ? "line" : "scatter", name: s.name, data: s.points, symbol: s.bare ? "none" : s.symbol || symbol(s.colour ?? i), symbolSize: (v) => s.size || v[3] || 9,
        label: { show: !!d.named, position: "right", distance: 4, color: soft, fontSize: 11, formatter: (item) => item.value[2] }, labelLayout: ({ labelRect, rect }) => ({ hideOverlap: true, ...(labelRect.x + labelRect.width > width - 4 && { x: rect.x - 4, align: "right" }) }), // left of its point at the edge
        itemStyle: { color: colour(s.colour ?? i), opacity: s.line ? 1 : 0.8, borderColor: card, borderWidth: 0.5 }, lineStyle: { color: colour(s.colour ?? i), width: 2.2, type: DASHES[s.dash || 0] },
      }));
      if (d.diagonal) series.push({ type: "line", name: "", data: [[0, 0], [1, 1]], symbol: "none", silent: true, tooltip: { show: false }, lineStyle: { color: soft, type: "dotted", width: 1 } });
      const option = base();
      option.tooltip.formatter = (item) => lines(item.value[2] || item.seriesName, [...(d.x.labels ? [] : [[d.x.name, say(d.x.unit, item.value[0])]]), [d.y.name, say(d.y.unit, item.value[1])], ...(d.series.length > 1 && item.value[2] ? [["", item.seriesName]] : [])]).replace("<br>: ", "<br>");
      return { ...option, xAxis: below(axis(d.x)), yAxis: axis(d.y), series };
    },
    // Bars, one on top of the other, over categories.
    bars(d, width) {
      const option = base();
      Object.assign(option.tooltip, { trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: line, opacity: 0.4 } } });
      option.tooltip.formatter = (items) => lines(items[0].name, items.filter((item) => item.value).map((item) => [item.seriesName, say(d.unit, item.value)]));
      const series = d.series.map((s, i) => ({ type: "bar", name: s.name, data: s.values, stack: d.stack === false ? undefined : "all", barMaxWidth: 26, itemStyle: { color: colour(s.colour ?? i), borderColor: card, borderWidth: 0.5 } }));
      const value = axis({ unit: d.unit, name: d.name, min: d.signed ? undefined : (d.min ?? 0), max: d.max }), category = names(d.categories, d.flat ? { inverse: true, axisLabel: { color: soft, fontSize: 11, width: width < 480 ? 140 : width < 800 ? 220 : 330, overflow: "truncate" } } : {});
      return { ...option, xAxis: below(d.flat ? value : category), yAxis: d.flat ? category : value, series };
    },
    // A matrix of shares, with counts in `counts`, and text in `labels` where a share is unknown.
    heat(d, width) {
      const option = base(), cells = d.values.flatMap((row, r) => row.map((v, c) => [c, r, v ?? 0])), wide = (width - 110) / d.columns.length;
      const most = Math.max(...cells.map((cell) => cell[2] || 0), 1e-9);
      const known = (c, r) => d.labels?.[r][c];
      option.tooltip.formatter = ({ value: [c, r, v] }) => lines(`${d.names[0]} ${d.rows[r]}`, [[`${d.names[1]} ${d.columns[c]}`, known(c, r) || `${say("share", v)}${d.counts ? ` (${say("count", d.counts[r][c])})` : ""}`]]);
      const shade = { show: false, min: 0, max: most, dimension: 2, inRange: { color: [low, high] } };
      const pale = (v) => v / most > 0.55 ? card : ink;
      const data = cells.map((cell) => ({ value: cell, label: { color: pale(cell[2]) } }));
      const label = { show: wide >= 26 && d.rows.length <= 24, fontSize: 11, formatter: ({ value }) => known(value[0], value[1]) || (value[2] >= 0.005 ? (100 * value[2]).toFixed(0) : "") };
      return {
        ...option, visualMap: shade, xAxis: names(d.columns, { name: d.names[1], nameLocation: "middle", nameGap: wide < 44 && d.columns.some((c) => c.length > 3) ? 62 : 30, nameTextStyle: { color: soft }, axisLine: { show: false }, axisLabel: { color: soft, fontSize: 11, interval: 0, rotate: wide < 44 && d.columns.some((c) => c.length > 3) ? 40 : 0, width: 80, overflow: "truncate", hideOverlap: true } }),
        yAxis: names(d.rows, { inverse: true, name: d.names[0], nameLocation: "middle", nameTextStyle: { color: soft }, axisLine: { show: false }, axisLabel: { color: soft, fontSize: 11, hideOverlap: true, width: 90, overflow: "truncate" } }),
        series: [{ type: "heatmap", data, label, itemStyle: { borderColor: card, borderWidth: 1.5, borderRadius: 2 }, emphasis: { itemStyle: { borderColor: ink } } }],
      };
    },
    // A figure a row with its interval and its single values; `marks` are lines across.
    dots(d, width) {
      const option = base(), whisker = (params, api) => {
        const [row, from, to] = [0, 1, 2].map((i) => api.value(i)), [x0, y] = api.coord([from, row]), [x1] = api.coord([to, row]);
        const stroke = { stroke: colour(d.rows[row].colour ?? row), lineWidth: 2.5 };
        return { type: "group", children: [[x0, y, x1, y], [x0, y - 5, x0, y + 5], [x1, y - 5, x1, y + 5]].map(([a, b, c, e]) => ({ type: "line", shape: { x1: a, y1: b, x2: c, y2: e }, style: stroke })) };
      };
      option.tooltip.formatter = (item) => (item.seriesName === "each" ? lines(d.rows[item.value[1]].name, [[item.value[2], say(d.unit, item.value[0])]]) : lines(d.rows[item.value[1] ?? item.value[0]].name, [["mean", say(d.unit, d.rows[item.value[1]].mean)], ...(d.rows[item.value[1]].lo === null ? [] : [["95 % interval", `${say(d.unit, d.rows[item.value[1]].lo)} to ${say(d.unit, d.rows[item.value[1]].hi)}`]])]));
      const style = (row, i) => ({ color: colour(row.colour ?? i) });
      const means = d.rows.map((row, i) => ({ value: [row.mean, i], symbol: row.symbol || symbol(row.colour ?? i), symbolSize: row.size || 12, itemStyle: style(row, i) })).filter((item) => item.value[0] !== null);
      const marks = (d.marks || []).map((mark) => ({ xAxis: mark.at, label: { show: true, formatter: mark.name, color: soft, fontSize: 11, position: "end" } }));
      const narrow = width < 480;
      option.grid.top = marks.length ? 26 : 10;
      if (d.beside) option.grid.right = 44; // of the label of the largest value
      return {
        ...option, xAxis: below(axis({ unit: d.unit, name: d.name })), yAxis: names(d.rows.map((row) => row.name), { inverse: true, axisLabel: { color: ink, fontSize: 12, width: narrow ? (d.beside ? 145 : 122) : 220, overflow: "truncate" } }),
        series: [
          { type: "custom", name: "interval", silent: true, clip: true, renderItem: whisker, encode: { x: [1, 2], y: 0 }, data: d.rows.map((row, i) => [i, row.lo, row.hi]).filter((row) => row[1] !== null && row[1] !== undefined) },
          { type: "scatter", name: "each", symbolSize: 6, data: d.rows.flatMap((row, i) => (row.each || []).map(([v, what]) => ({ value: [v, i, what], itemStyle: { ...style(row, i), opacity: 0.45 } }))) },
          { type: "scatter", name: "zero", silent: true, symbolSize: 0, data: d.zero ? [[0, 0]] : [] },
          { type: "scatter", name: "mean", data: means, label: { show: true, position: d.beside ? "right" : "top", distance: 7, color: ink, fontSize: 12, formatter: (item) => say(d.unit, item.value[0]) }, labelLayout: { hideOverlap: true },
            markLine: { silent: true, symbol: "none", lineStyle: { color: soft, type: "dotted" }, data: marks } },
        ],
      };
    },
  };

  // --- places ---
  const MARKS = { circle: "M4 5a5 5 0 1 1 10 0a5 5 0 1 1-10 0z", rect: "M4 0h10v10H4z", triangle: "M9 0l5.5 10h-11z", diamond: "M9 0l5 5-5 5-5-5z", [PLUS]: "M7 0h4v3h3v4h-3v3h-4v-3h-3v-4h3z", [DOWN]: "M3.5 .5h11l-5.5 9.5z", [RIGHT]: "M5 0l9 5-9 5z" };
  const drawn = [];
  const keys = (place, about, chart, option) => {
    place.nextElementSibling?.classList.contains("keys") && place.nextElementSibling.remove();
    const listed = [...new Map(about.series?.map((s, i) => [s.name, { ...s, colour: s.colour ?? i }])).values()].filter((s) => s.name);
    if (listed.length < 2) return;
    const box = document.createElement("div");
    box.className = "keys";
    for (const s of listed) {
      const button = box.appendChild(document.createElement("button"));
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.title = "show or hide";
      const stroke = about.kind === "bars" ? 10 : about.kind === "lines" || s.line ? 3 : 0, dash = s.dash ? ` stroke-dasharray="${s.dash === 2 ? "1.5 2" : "4 2"}"` : "";
      const mark = MARKS[symbol(s.colour)] || MARKS.circle;
      button.innerHTML = stroke ? `<svg viewBox="0 0 18 10" aria-hidden="true"><path d="M0 5h18" stroke="var(--s${s.colour % SERIES})" stroke-width="${stroke}"${dash}/></svg>` : `<svg viewBox="0 0 18 10" aria-hidden="true"><path d="${s.symbol ? "M2 3.5h14v3H2z" : mark}" fill="var(--s${s.colour % SERIES})"/></svg>`;
      button.append(s.name);
      button.onclick = () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        chart.dispatchAction({ type: on ? "legendSelect" : "legendUnSelect", name: s.name });
      };
    }
    place.after(box);
  };
  const draw = (entry, fresh = true) => {
    const { place, chart, data } = entry, about = { ...data, ...(data.views ? Object.values(data.views)[entry.view] : {}) };
    chart.resize();
    chart.setOption(KINDS[about.kind](about, place.clientWidth), { notMerge: true });
    if (fresh) keys(place, about, chart);
    else place.nextElementSibling?.querySelectorAll?.('button[aria-pressed="false"]').forEach((b) => chart.dispatchAction({ type: "legendUnSelect", name: b.textContent }));
  };
  // Cells that a spreadsheet would run as formulas begin with an apostrophe.
  const cell = (v) => {
    const text = v === null || v === undefined ? "" : typeof v === "number" ? String(v) : /^[=+\-@\t\r]/.test(v) ? `'${v}` : String(v);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const ROWS = {
    lines: (d) => [["series", d.x.name, d.y.name, "low", "high"], ...d.series.flatMap((s) => s.x.map((x, i) => [s.name, x, s.y[i], s.lo?.[i], s.hi?.[i]]))],
    plane: (d) => [["series", d.x.name || "x", d.y.name || "y", "what"], ...d.series.flatMap((s) => s.points.map((p) => [s.name, ...p.slice(0, 3)]))],
    bars: (d) => [["series", "category", d.name || "value"], ...d.series.flatMap((s) => s.values.map((v, i) => [s.name, d.categories[i], v]))],
    heat: (d) => [[...d.names, "share", "count"], ...d.values.flatMap((row, r) => row.map((v, c) => [d.rows[r], d.columns[c], v, d.counts?.[r][c]]))],
    dots: (d) => [["name", "what", d.name || "value", "low", "high"], ...d.rows.flatMap((row) => [[row.name, "mean", row.mean, row.lo, row.hi], ...(row.each || []).map(([v, what]) => [row.name, what, v])])],
  };
  const csv = (data) => {
    const views = data.views ? Object.entries(data.views) : [["", {}]];
    const parts = views.map(([view, own]) => ROWS[data.kind]({ ...data, ...own }).map((row) => (data.views ? [view, ...row] : row)));
    if (data.views) parts.forEach(([head]) => (head[0] = "view"));
    const width = parts[0][0].length, filled = (row) => Array.from({ length: width }, (_, i) => cell(row[i]));
    return parts.flatMap((rows, i) => (i ? rows.slice(1) : rows)).map((row) => filled(row).join(",")).join("\r\n") + "\r\n";
  };
  const start = (place, data) => {
    const entry = { place, data, view: 0, chart: echarts.init(place, null, { renderer: "svg" }) };
    if (data.views && Object.keys(data.views).length > 1) {
      const choice = document.createElement("select");
      choice.setAttribute("aria-label", "what is shown");
      Object.keys(data.views).forEach((name, i) => choice.add(new Option(name, i)));
      choice.onchange = () => ((entry.view = Number(choice.value)), draw(entry));
      place.before(choice);
    }
    const called = place.closest("figure").querySelector("figcaption").firstChild.textContent;
    const download = (href, kind) => Object.assign(document.createElement("a"), { href, download: `${called}.${kind}` }).click();
    const svg = () => entry.chart.getDataURL({ type: "svg" });
    const png = () => {
      const image = new Image(), canvas = document.createElement("canvas"), [w, h] = [place.clientWidth, place.clientHeight];
      image.onload = () => {
        Object.assign(canvas, { width: 2 * w, height: 2 * h });
        const context = canvas.getContext("2d");
        context.fillStyle = card;
        context.fillRect(0, 0, 2 * w, 2 * h);
        context.drawImage(image, 0, 0, 2 * w, 2 * h);
        download(canvas.toDataURL("image/png"), "png");
      };
      image.src = svg();
    };
    const saves = document.createElement("span");
    saves.className = "saves";
    place.closest("figure").querySelector("figcaption").prepend(saves);
    const how = { SVG: () => download(svg(), "svg"), PNG: png, CSV: () => download(`data:text/csv;charset=utf-8,${encodeURIComponent(csv(data))}`, "csv") };
    for (const [name, run] of Object.entries(how)) saves.append(Object.assign(document.createElement("button"), { type: "button", className: "save", textContent: name, title: `save this chart as ${name}`, onclick: run }));
    drawn.push(entry);
    draw(entry);
    let width = place.clientWidth;
    new ResizeObserver(() => place.clientWidth !== width && ((width = place.clientWidth), draw(entry, false))).observe(place);
  };
  const all = () => (paint(), drawn.forEach((entry) => draw(entry, false)));

  paint();
  for (const [name, data] of Object.entries(charts)) start(document.getElementById(name), data);

  // --- tables ---
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      if (body.rows[0]?.cells[column]?.classList.contains("number")) head.classList.add("number");
      head.firstChild.onclick = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => (row.cells[column].dataset.key === undefined ? row.cells[column].textContent : row.cells[column].dataset.key === "" ? NaN : Number(row.cells[column].dataset.key));
        const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : Number.isNaN(a) ? 1 : Number.isNaN(b) ? -1 : a - b);
        body.append(...[...body.rows].sort((a, b) => { const [x, y] = [key(a), key(b)]; return Number.isNaN(x) || Number.isNaN(y) || !down ? order(x, y) : -order(x, y); }));
      };
    });
  }

  // --- light, dark, print ---
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").onclick = () => ((root.dataset.theme = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark"), all());
  dark.addEventListener("change", all);
  let before;
  addEventListener("beforeprint", () => ((before = root.dataset.theme), (root.dataset.theme = "light"), document.body.classList.add("printing"), all()));
  addEventListener("afterprint", () => (before ? (root.dataset.theme = before) : delete root.dataset.theme, document.body.classList.remove("printing"), all()));
  root.dataset.drawn = String(drawn.length);
})();
