// Play works without a network once it has been loaded: what was fetched last stands in for what cannot be fetched now.
addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  event.respondWith(
    fetch(event.request)
      .then(async (response) => {
        const copy = response.clone();
        if (response.ok) event.waitUntil(caches.open("play").then((cache) => cache.put(event.request, copy)));
        return response;
      })
      .catch(async (error) => (await caches.match(event.request, { ignoreSearch: true })) ?? Promise.reject(error)),
  );
});
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
