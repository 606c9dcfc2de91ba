"""The API's description of itself: OpenAPI 3.1 at `/openapi.json`, and Swagger UI at `/docs`.

What a route takes and answers stands beside its view, as `@operation(...)` of `operation`; paths,
methods and the sentence come from the route and the view's docstring. `document` puts all of it
together, once and when it is first asked for.
"""
