"use strict";
(() => {
  const make = (name, text) => Object.assign(document.createElement(name), text === undefined ? {} : { textContent: text });
  const save = (name, type, text) => {
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "table";

  // Tables: a click on a heading sorts; numbers by data-v, text by locale; empty cells last.
  const value = (row, column) => {
    const cell = row.cells[column];
    const raw = cell === undefined ? "" : cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim();
    return raw !== "" && !Number.isNaN(Number(raw)) ? Number(raw) : raw;
  };
  const compare = (a, b) => {
    if (a === "" || b === "") return a === b ? 0 : a === "" ? 2 : -2;
    if (typeof a === "number" && typeof b === "number") return Math.sign(a - b);
    return Math.sign(String(a).localeCompare(String(b), undefined, { numeric: true }));
  };
  const sort = (table, column, heading) => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((p, q) => {
      const order = compare(value(p, column), value(q, column));
      return Math.abs(order) === 2 ? order : up ? order : -order;
    });
    body.append(...rows);
  };
  const csv = (table) => [...table.rows]
    .map((row) => [...row.cells].map((cell) => {
      const raw = cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim().replace(/\s+/g, " ");
      return /[",\n]/.test(raw) ? `"${raw.replaceAll('"', '""')}"` : raw;
    }).join(","))
    .join("\n");
  for (const table of document.querySelectorAll("table.sort")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = make("button", heading.textContent);
      button.type = "button";
      button.addEventListener("click", () => sort(table, column, heading));
      heading.replaceChildren(button);
    });
    const tools = make("div");
    tools.className = "tools";
    if (table.dataset.filter !== undefined) {
      const input = make("input");
      input.type = "search";
      input.placeholder = "filter rows";
      input.setAttribute("aria-label", "filter rows");
      input.addEventListener("input", () => {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        for (const row of table.tBodies[0].rows) {
          const text = row.textContent.toLowerCase();
          row.hidden = !words.every((word) => text.includes(word));
        }
      });
      tools.append(input);
    }
    const button = make("button", "CSV");
    button.type = "button";
    button.addEventListener("click", () => save(`${slug(table.dataset.name || "table")}.csv`, "text/csv", csv(table) + "\n"));
    tools.append(button);
    table.parentElement.after(tools);
  }

  // Charts: the hover line reads values back from the curves' coordinates.
  const space = "http://www.w3.org/2000/svg";
  const show = (number) => {
    const size = Math.abs(number);
    if (size !== 0 && (size >= 1e6 || size < 1e-3)) return number.toExponential(3);
    return size >= 1000 ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(5)));
  };
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle; else high = middle;
    }
    return Math.abs(points[low][0] - x) < Math.abs(points[high][0] - x) ? points[low] : points[high];
  };
  for (const chart of document.querySelectorAll("svg.chart[data-scale]")) {
    const [x0, x1, y0, y1] = chart.dataset.scale.split(" ").map(Number);
    const [left, top, right, bottom] = chart.dataset.plot.split(" ").map(Number);
    const log = chart.dataset.log === "1";
    const toX = (p) => x0 + (p - left) / (right - left) * (x1 - x0);
    const toY = (p) => {
      const share = (bottom - p) / (bottom - top);
      return log ? y0 * (y1 / y0) ** share : y0 + share * (y1 - y0);
    };
    const curves = [...chart.querySelectorAll("polyline.curve")].map((line) => ({
      name: line.dataset.name,
      colour: [...line.classList].find((name) => /^c\d$/.test(name)),
      points: line.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number)),
    }));
    const hover = chart.querySelector(".hover");
    const figure = chart.closest("figure");
    const tip = make("div");
    tip.className = "tip";
    tip.hidden = true;
    figure.append(tip);
    const leave = () => { tip.hidden = true; hover.replaceChildren(); };
    chart.addEventListener("pointerleave", leave);
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
      if (x < left - 8 || x > right + 8) { leave(); return; }
      const hits = curves.map((curve) => ({ curve, point: nearest(curve.points, x) }));
      const at = hits.reduce((a, b) => Math.abs(a.point[0] - x) <= Math.abs(b.point[0] - x) ? a : b).point[0];
      const line = document.createElementNS(space, "line");
      for (const [name, n] of [["x1", at], ["x2", at], ["y1", top], ["y2", bottom]]) line.setAttribute(name, n);
      const dots = hits.map(({ curve, point }) => {
        const dot = document.createElementNS(space, "circle");
        dot.setAttribute("class", `dot ${curve.colour}`);
        dot.setAttribute("cx", point[0]);
        dot.setAttribute("cy", point[1]);
        dot.setAttribute("r", 3.5);
        return dot;
      });
      hover.replaceChildren(line, ...dots);
      const rows = hits.slice(0, 12).map(({ curve, point }) => make("div", `${curve.name}  ${show(toY(point[1]))}`));
      tip.replaceChildren(make("strong", `${chart.dataset.x} ${show(Math.round(toX(at)))}`), ...rows);
      tip.hidden = false;
      const frame = figure.getBoundingClientRect();
      const place = event.clientX - frame.left;
      tip.style.left = `${place > frame.width / 2 ? place - tip.offsetWidth - 14 : place + 14}px`;
      tip.style.top = `${Math.max(0, event.clientY - frame.top - 10)}px`;
    });
  }

  // SVG of a chart on its own, with the colours it has now.
  const properties = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"];
  for (const chart of document.querySelectorAll("figure > svg.chart")) {
    const button = make("button", "SVG");
    button.type = "button";
    button.addEventListener("click", () => {
      const copy = chart.cloneNode(true);
      const from = [...chart.querySelectorAll("*")], to = [...copy.querySelectorAll("*")];
      from.forEach((node, i) => {
        const style = getComputedStyle(node);
        for (const name of properties) to[i].setAttribute(name, style.getPropertyValue(name));
        to[i].removeAttribute("class");
      });
      save(`${slug(chart.getAttribute("aria-label"))}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(copy));
    });
    chart.parentElement.querySelector("figcaption").append(button);
  }

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
})();
