// Runs before the first paint, so that the other theme does not flash.
try {
	const chosen = localStorage.getItem("tensorserve.theme");
	if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
	// Storage is disabled: the page follows the system's theme.
}
