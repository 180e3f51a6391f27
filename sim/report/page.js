"use strict";
(() => {
  const data = document.getElementById("cells");
  const { shared, cells } = data ? JSON.parse(data.textContent) : { shared: {}, cells: [] };
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const told = (element) => {
    if (element.dataset.tip !== undefined) return element.dataset.tip;
    const cell = cells[Number(element.dataset.cell)];
    return Object.entries(cell).map(([name, value]) => `${name}: ${value}`).join("\n");
  };
  const show = (element, x, y) => {
    tip.textContent = told(element);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 16}px`;
  };
  const tipped = (event) => (event.target.closest ? event.target.closest("[data-cell], [data-tip]") : null);
  document.addEventListener("pointermove", (event) => {
    const element = tipped(event);
    if (element && element.tagName !== "TR") show(element, event.clientX, event.clientY);
    else tip.hidden = true;
  });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // What a click chooses: the settings of a cell, beside those that all cells share.
  const choose = (number) => {
    const place = document.getElementById("chosen");
    if (!place) return;
    document.querySelectorAll(".chosen").forEach((element) => element.classList.remove("chosen"));
    document.querySelectorAll(`.m[data-cell="${number}"]`).forEach((element) => element.classList.add("chosen"));
    const rows = Object.entries({ ...cells[number], ...shared }).map(([name, value]) => {
      const row = document.createElement("tr");
      for (const words of [name, value]) row.append(Object.assign(document.createElement("td"), { textContent: words }));
      return row;
    });
    place.querySelector("tbody").replaceChildren(...rows);
    place.hidden = false;
  };

  // A facet filters by the values pressed; with none pressed it lets all through.
  const facets = [...document.querySelectorAll("[data-facet]")].map((element) => element.dataset.facet);
  const pressed = (facet) => new Set(
    [...document.querySelectorAll(`[data-facet="${facet}"] .chip[aria-pressed="true"]`)].map((chip) => chip.value));
  const filter = () => {
    const chosen = facets.map((facet) => [facet, pressed(facet)]);
    const out = (element) => chosen.some(([facet, values]) => {
      const own = element.getAttribute(`data-${facet}`);
      return values.size && own !== null && !values.has(own);
    });
    document.querySelectorAll(facets.map((facet) => `[data-${facet}]`).join(", ")).forEach((element) => {
      element.classList.toggle("hide", out(element));
    });
    const count = document.getElementById("count");
    const rows = [...document.querySelectorAll("tr[data-cell]")];
    if (count) count.textContent = `${rows.filter((row) => !row.classList.contains("hide")).length} of ${rows.length} cells`;
  };

  document.addEventListener("click", (event) => {
    const chip = event.target.closest(".chip");
    if (chip) {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      filter();
      return;
    }
    const element = tipped(event);
    if (!element) return;
    if (element.dataset.cell !== undefined) choose(Number(element.dataset.cell));
    if (element.tagName !== "TR") show(element, event.clientX, event.clientY);
  });
})();
