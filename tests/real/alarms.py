"""Each cause that the drift alarm names, caused."""


def all_causes(options, tools, start):
    raise NotImplementedError
