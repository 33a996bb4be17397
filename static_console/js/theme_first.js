// Sets the remembered theme before the first paint; a classic script, so that nothing flashes.
(() => {
  try {
    const kept = localStorage.getItem("swarm-theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch {
    // Storage may be closed to this page: the system's theme is used.
  }
})();
