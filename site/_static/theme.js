// The theme that a reader chose on the course's pages holds here, too.
const mode = localStorage.getItem("mode");
if (mode === "light" || mode === "dark") document.documentElement.dataset.theme = mode;
