// Renews the living part of a page every few seconds while somebody looks at it. Without it the page reloads itself.
"use strict";

const EVERY = 3000;

async function renew() {
  const live = document.querySelector("[data-live]");
  if (live === null || document.hidden) return;
  let fresh;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  } catch {
    return; // the console is gone; what it showed last stays
  }
  if (fresh === null || fresh.innerHTML === live.innerHTML) return;
  const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  for (const open of live.querySelectorAll("details[open][id]")) fresh.querySelector(`#${open.id}`)?.setAttribute("open", "");
  live.replaceChildren(...fresh.childNodes);
  if (focused !== null) [...live.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

setInterval(renew, EVERY);
