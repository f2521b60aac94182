"use strict";
// The map, drawn by BokehJS from the JSON beside it. Texts reach the page as text nodes only: no value is ever markup.
{
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const chart = document.getElementById("map-chart");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const api = Bokeh.Plotting;
  const most = Math.max(...data.cells.map((c) => c[2]));
  const search = document.getElementById("map-search");
  const domain = document.getElementById("map-domain");
  const columns = ["x", "y", "text", "domain", "said", "kind"];
  const mix = { ...data.mix, said: data.mix.source, kind: data.mix.x.map(() => "mix") };
  const named = [{ name: "training mix", ...mix }, ...data.layers];
  const looks = {
    mix: { color: "mix", size: 4, marker: "circle", alpha: data.mix.x.length > 2000 ? 0.3 : 0.7 },
    here: { color: "here", size: 9, marker: "circle", alpha: 0.95 },
    foreign: { color: "bad", size: 10, marker: "x", alpha: 1 },
    pack: { color: "good", size: 8, marker: "triangle", alpha: 0.95 },
  };
  let sources = [];

  const chosen = (layer) => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const keep = [];
    for (let i = 0; i < layer.x.length; i++) {
      if (domain.value && layer.domain[i] !== domain.value) continue;
      const text = `${layer.text[i]} ${layer.domain[i]} ${layer.said[i]}`.toLowerCase();
      if (words.every((w) => text.includes(w))) keep.push(i);
    }
    return Object.fromEntries(columns.map((c) => [c, keep.map((i) => layer[c][i])]));
  };

  const filter = () => {
    let n = 0;
    for (const { source, layer } of sources) {
      const columns = chosen(layer);
      source.data = columns;
      n += columns.x.length;
    }
    const all = named.reduce((sum, layer) => sum + layer.x.length, 0);
    document.getElementById("map-shown").textContent = `${n} of ${all} points shown`;
  };

  const draw = async () => {
    const plot = api.figure({
      sizing_mode: "stretch_both", tools: "pan,wheel_zoom,box_zoom,reset", toolbar_location: "above",
      background_fill_color: colour("page"), border_fill_color: colour("page"), outline_line_color: null,
      output_backend: "canvas",
    });
    plot.toolbar.logo = null;
    plot.xgrid.visible = plot.ygrid.visible = plot.xaxis.visible = plot.yaxis.visible = false;
    if (matchMedia("(pointer: coarse)").matches) plot.toolbar.active_drag = null;  // a finger scrolls the page
    const density = new Bokeh.ColumnDataSource({ data: {
      x: data.cells.map((c) => c[0]), y: data.cells.map((c) => c[1]),
      alpha: data.cells.map((c) => 0.1 + 0.5 * Math.sqrt(c[2] / most)),
    } });
    plot.rect({ field: "x" }, { field: "y" }, { value: data.cell[0] }, { value: data.cell[1] }, {
      source: density, fill_color: colour("mix"), line_color: null, fill_alpha: { field: "alpha" },
    });
    sources = [];
    const points = [];
    for (const kind of ["mix", "pack", "here", "foreign"]) {  // the last lies on top
      for (const whole of named) {
        const at = whole.kind.flatMap((k, i) => (k === kind ? [i] : []));
        if (!at.length) continue;
        const layer = Object.fromEntries(columns.map((c) => [c, at.map((i) => whole[c][i])]));
        const look = looks[kind];
        const source = new Bokeh.ColumnDataSource({ name: kind, data: layer });
        points.push(plot.scatter({ field: "x" }, { field: "y" }, {
          source, size: look.size, marker: look.marker, fill_color: colour(look.color), fill_alpha: look.alpha,
          line_color: kind === "foreign" ? colour(look.color) : colour("page"),
          line_width: kind === "foreign" ? 2.5 : kind === "mix" ? 0 : 1,
        }));
        sources.push({ source, layer });
      }
    }
    plot.add_tools(new Bokeh.HoverTool({
      renderers: points, tooltips: [["prompt", "@text"], ["domain", "@domain"], ["", "@said"]], point_policy: "snap_to_data",
    }));
    chart.replaceChildren();
    chart.classList.add("drawn");
    await api.show(plot, chart);
    chart.dataset.ready = "yes";
    filter();
  };

  const fallback = [...chart.children];
  const start = () => draw().catch((error) => {
    chart.classList.remove("drawn");
    chart.replaceChildren(...fallback);  // the drawing that came with the page says the same
    console.error(error);
  });
  search.addEventListener("input", filter);
  domain.addEventListener("change", filter);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", start);
  start();
}
